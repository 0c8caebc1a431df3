/** Shows a LaTeX formula as MathML, or its source if it cannot be read. */
import { html, useLayoutEffect, useRef, useState } from '../../vendor/htm-preact.js';
import { visible } from '../../text.js';
import temml from '../../vendor/temml.js';

const MAX_LENGTH = 2000;
const MATHML = 'http://www.w3.org/1998/Math/MathML';
/** Presentation only: no addresses, names or handlers. Temml sets styles through the DOM, which the page's policy allows. */
const ATTRIBUTES = new Set(['accent', 'accentunder', 'class', 'columnalign', 'columnlines', 'columnspacing', 'depth', 'display',
  'displaystyle', 'fence', 'form', 'frame', 'height', 'largeop', 'linethickness', 'lspace', 'mathvariant', 'maxsize', 'minsize', 'movablelimits',
  'notation', 'rowalign', 'rowlines', 'rowspacing', 'rspace', 'scriptlevel', 'separator', 'stretchy', 'style', 'symmetric', 'voffset', 'width']);

/** The options that bound what a formula can do: no commands that refer to the page or the network, few expansions, no huge sizes. */
export function formulaOptions(display) {
  return { displayMode: display, throwOnError: true, trust: false, strict: false, maxExpand: 200, maxSize: [20, 200], macros: {} };
}

/** @param {{text: string, source: string, display: boolean}} props `source` includes the delimiters */
export function Formula({ text, source, display }) {
  const place = useRef(null);
  const [failed, setFailed] = useState(false);
  useLayoutEffect(() => {
    const math = failed ? null : drawn(text, display);
    if (math) place.current.replaceChildren(math);
    else setFailed(true);
  }, [text, display]);
  if (failed) return html`<code class="formula-source">${visible(source)}</code>`;
  return html`<span class=${display ? 'formula display' : 'formula'} ref=${place} title=${text} tabindex=${display ? 0 : undefined}></span>`;
}

/** The `math` element of a formula, or null. */
function drawn(text, display) {
  if (text.length > MAX_LENGTH) return null;
  const holder = document.createElement('span');
  try {
    temml.render(text, holder, formulaOptions(display));
  } catch {
    return null; // not LaTeX, too many expansions, or nested too deeply
  }
  const math = holder.querySelector('math');
  return math && cleaned(math) ? math : null;
}

/** Removes other attributes. Returns false if there is an element that does not belong to a formula. */
function cleaned(math) {
  for (const element of [math, ...math.querySelectorAll('*')]) {
    if (element.namespaceURI !== MATHML) return false;
    for (const { name } of [...element.attributes]) if (!ATTRIBUTES.has(name)) element.removeAttribute(name);
  }
  return true;
}
