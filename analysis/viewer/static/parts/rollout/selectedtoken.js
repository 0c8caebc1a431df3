/** The token at the pointer or keyboard position of a row of tokens. */
import { useState } from '../../vendor/htm-preact.js';

/**
 * The index of the selected token (-1: none), a function that sets it, and the handlers for the element that contains
 * the tokens, each of which has its index as `data-at`. The arrow keys stay from `first` to `last`; before a token is
 * selected, they start at `start`.
 * @param {{first: number, last: number, start?: number}} bounds
 * @returns {[number, (at: number) => void, {onMouseOver: any, onClick: any, onKeyDown: any}]}
 */
export function useSelectedToken({ first, last, start = -1 }) {
  const [at, setAt] = useState(-1);
  const select = (event) => {
    const found = event.target.closest('[data-at]');
    if (found) setAt(Number(found.dataset.at));
  };
  const move = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    setAt(Math.max(first, Math.min(last, (at < 0 ? start : at) + by)));
  };
  return [at, setAt, { onMouseOver: select, onClick: select, onKeyDown: move }];
}
