/** Links from a rollout to comparisons with other rollouts of its task. */
import { html } from '../../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../../data.js';
import { useKeys } from '../../keys.js';
import { plain } from '../../formatting.js';
import { go } from '../../route.js';
import { Name } from '../../text.js';
import { sideBySide } from './choose.js';

function outcome({ success, reward }) {
  return success === null ? (reward === null ? 'failed' : `reward ${plain(reward)}`) : success ? 'solved' : 'not solved';
}

/** @param {{run: number, line: any}} props */
export function Counterparts({ run, line }) {
  const { value } = useData(IS_EXPORT ? null : `runs/${run}/rollouts/${line.task}/${line.repeat}/counterparts`);
  const found = value?.counterparts ?? [];
  const href = (one) => sideBySide([run, line.task, line.repeat], [one.run, one.task, one.repeat]);
  useKeys({ s: () => (found.length > 0 ? go(href(found[0])) : false) });
  return found.length > 0 && html`<nav class="row small counterparts" aria-label="Side by side with">
    <span class="soft" title="s compares with the first">Side by side with</span>
    ${found.map((one) => html`<a class="button" href=${href(one)}>${one.kind === 'other file'
      ? html`<${Name} value=${one.name} />`
      : `${one.kind} (${one.repeat})`}<span class="soft">${' '}${outcome(one)}</span></a>`)}
  </nav>`;
}
