/** The line below a search result that shows what matched; its link opens the rollout at the match. */
import { html } from '../../vendor/htm-preact.js';
import { placeOf } from '../../snippets.js';
import { Name, escapeInvisible } from '../../text.js';

/** @param {{snippet: any, span: number, href: (changes: Record<string, string | number | null>) => string}} props */
export function SnippetRow({ snippet, span, href }) {
  const { event, before, match, after } = snippet;
  return html`<tr class="snippet"><td colspan=${span}><div>
    <a href=${href({ match: event })}>${escapeInvisible(placeOf(snippet))}</a>
    ${' '}<${Name} value=${before} /><mark><${Name} value=${match} /></mark><${Name} value=${after} />
  </div></td></tr>`;
}
