/** Converts the server's SVG to elements: only drawing elements, known attributes and links within the page. */
import { h } from './vendor/htm-preact.js';

const TAGS = new Set(['svg', 'g', 'a', 'title', 'text', 'line', 'rect', 'circle', 'path', 'polyline', 'polygon']);
const ATTRIBUTES = new Set(['class', 'role', 'aria-label', 'tabindex', 'viewBox', 'preserveAspectRatio', 'width', 'height',
  'x', 'y', 'x1', 'x2', 'y1', 'y2', 'dx', 'cx', 'cy', 'r', 'rx', 'd', 'points']);

/** The root element, parsed in a separate document in which no script runs and nothing is loaded. @param {string} svg @returns {Element} */
export function parseSvg(svg) {
  return new DOMParser().parseFromString(svg, 'text/html').body.firstElementChild;
}

/**
 * The element as a preact node, so that focus and pointer survive a redrawn chart.
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
