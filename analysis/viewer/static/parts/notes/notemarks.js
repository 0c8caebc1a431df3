/** The labels and the verdict of a rollout in short, for lists and cards. */
import { html } from '../../vendor/htm-preact.js';
import { Name, escapeInvisible } from '../../text.js';
import { labelsOf, overrideOf, verdictText } from './rolloutnotes.js';

/** @param {{notes: any}} props  `notes`: what applies to the rollout, or undefined */
export function NoteMarks({ notes }) {
  if (!notes) return null;
  const override = overrideOf(notes);
  const texts = notes.texts.map((one) => escapeInvisible(`${one.author}: ${one.text}`)).join('\n');
  return html`<span class="marks">
    ${override && html`<span class=${`mark verdictmark ${override.verdict === 'wrong' ? 'bad' : override.verdict === 'correct' ? 'good' : ''}`}
      title=${escapeInvisible(`${override.author}: ${verdictText(override.verdict)} ${override.reason}`)}>${verdictText(override.verdict)}</span>`}
    ${labelsOf(notes).map(({ label, authors }) => html`<span class="mark" title=${escapeInvisible(authors.join(', '))}><${Name} value=${label} /></span>`)}
    ${notes.texts.length > 0 && html`<span class="mark soft" title=${texts}>${notes.texts.length === 1 ? 'note' : `${notes.texts.length} notes`}</span>`}
  </span>`;
}
