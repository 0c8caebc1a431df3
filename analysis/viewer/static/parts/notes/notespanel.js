/** What applies to a rollout: its labels, verdicts and notes, with who wrote them, and buttons for everything that keys do. */
import { html } from '../../vendor/htm-preact.js';
import { IS_EXPORT } from '../../data.js';
import { Name, Text } from '../../text.js';
import { NONE, NUMBERED, keyOf, ownLabel, verdictText } from './rolloutnotes.js';

/** @param {{annotator: any, line: {task: number, repeat: number}}} props */
export function NotesPanel({ annotator, line }) {
  const { store } = annotator;
  const notes = store.notes.get(keyOf(line)) ?? NONE;
  const isEmpty = notes === NONE;
  const own = notes.verdicts.find((one) => one.author === store.author);
  const canWrite = !store.whyReadOnly;
  if (isEmpty && IS_EXPORT) return null;
  return html`<section class="notespanel" aria-label="Notes and labels">
    ${canWrite && html`<div class="row">
      <button title="Add a label (l)" onClick=${annotator.start('label')}>Label</button>
      ${['correct', 'wrong'].map((verdict) => html`<button title=${verdict === 'correct' ? 'Correct (c)' : 'Wrong (x)'}
        aria-pressed=${own?.verdict === verdict ? 'true' : 'false'} onClick=${annotator.judge(verdict)}>${verdict === 'correct' ? 'Correct' : 'Wrong'}</button>`)}
      <button title="Verdict with a reason, or a reward (v)" onClick=${annotator.start('verdict')}>Reason</button>
      <button title="Write a note (w)" onClick=${annotator.start('note')}>Note</button>
      <span class="row used" role="group" aria-label="Labels used most">${(store.view?.labels ?? []).slice(0, NUMBERED).map(({ label }, i) => html`
        <button key=${label} class="quiet" aria-pressed=${ownLabel(notes, label, store.author) ? 'true' : 'false'} title=${`${i + 1}`}
          onClick=${() => annotator.toggle(line, label)}><kbd>${i + 1}</kbd> <${Name} value=${label} /></button>`)}</span>
      <button class="quiet" title="Next rollout that you have not labelled (.)" onClick=${annotator.next}>Next unlabelled</button>
      ${store.written.length > 0 && html`<button class="quiet" title="Undo (z)" onClick=${annotator.undo}>Undo</button>`}
      <label class="small soft author">as <input type="text" aria-label="Your name" maxlength="80" size="8" value=${store.author}
        onChange=${(event) => store.rename(event.target.value)} /></label>
    </div>`}
    ${!canWrite && !IS_EXPORT && html`<p class="small soft"><${Name} value=${`Notes cannot be written: ${store.whyReadOnly}.`} /></p>`}
    ${!isEmpty && html`<ul>
      ${notes.verdicts.map((one) => html`<li key=${one.id}><span class=${`mark ${one.verdict === 'wrong' ? 'bad' : one.verdict === 'correct' ? 'good' : ''}`}>${verdictText(one.verdict)}</span>
        <${By} one=${one} /> ${one.reason && html`<${Text} value=${one.reason} lines=${4} characters=${400} />`}
        <${Remove} annotator=${annotator} line=${line} one=${one} name=${`the verdict of ${one.author}`} /></li>`)}
      ${notes.labels.map((one) => html`<li key=${one.id}><span class="mark"><${Name} value=${one.label} /></span>
        <${By} one=${one} /><${Remove} annotator=${annotator} line=${line} one=${one} name=${`the label ${one.label} of ${one.author}`} /></li>`)}
      ${notes.texts.map((one) => html`<li key=${one.id} class="written"><${Text} value=${one.text} lines=${12} characters=${1500} />
        <${By} one=${one} /><${Remove} annotator=${annotator} line=${line} one=${one} name=${`the note of ${one.author}`} /></li>`)}
    </ul>`}
  </section>`;
}

function By({ one }) {
  return html`${' '}<span class="small soft" title=${new Date(one.time).toLocaleString('en-GB')}><${Name} value=${one.author} /></span>${' '}`;
}

function Remove({ annotator, line, one, name }) {
  if (annotator.store.whyReadOnly) return null;
  return html`<button class="quiet remove" aria-label=${`Remove ${name}`} title="Remove"
    onClick=${() => annotator.write(line, { kind: 'removal', removes: one.id })}>×</button>`;
}
