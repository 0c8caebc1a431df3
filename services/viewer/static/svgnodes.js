/** The server's SVG as elements of this page: only drawing elements, only attributes known here, links only within the page. */
import { h } from './vendor/htm-preact.js';

const TAGS = new Set(['svg', 'g', 'a', 'title', 'text', 'line', 'rect', 'circle', 'path', 'polyline', 'polygon']);
const ATTRIBUTES = new Set(['class', 'role', 'aria-label', 'tabindex', 'viewBox', 'preserveAspectRatio', 'width', 'height',
  'x', 'y', 'x1', 'x2', 'y1', 'y2', 'dx', 'cx', 'cy', 'r', 'rx', 'd', 'points']);

/** The root element, in a document of its own where nothing runs or loads. @param {string} svg @returns {Element} */
export function parsed(svg) {
  return new DOMParser().parseFromString(svg, 'text/html').body.firstElementChild;
}

/**
 * The element for preact, which keeps focus and pointer where a chart is drawn again.
 * @param {Element} element
 * @param {(tag: string, props: Record<string, string>, children: any[]) => any} [make]
 */
export function nodes(element, make = h) {
  if (!TAGS.has(element?.localName)) return null;
  const props = {};
  for (const { name, value } of element.attributes) {
    if (ATTRIBUTES.has(name) || (name === 'href' && value.startsWith('#/'))) props[name] = value;
  }
  const children = [...element.childNodes].map((child) => (child.nodeType === Node.TEXT_NODE ? child.data : nodes(child, make)));
  return make(element.localName, props, children);
}
