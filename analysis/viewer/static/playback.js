/** The state of a playback of frames: position, running or paused, speed. */
import { useCallback, useEffect, useState } from './vendor/htm-preact.js';

export const SPEEDS = [1, 2, 4, 8];
const FRAME_MS = 1000;

/**
 * Starts at the last frame, because users look for the outcome first, and stays at the end while frames arrive.
 * @param {number} length
 */
export function usePlayback(length) {
  const last = Math.max(0, length - 1);
  const [selected, setAt] = useState(/** @type {number | null} */ (null));
  const at = Math.min(selected ?? last, last);
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(4);
  useEffect(() => {
    if (!playing) return undefined;
    if (at >= last) {
      setPlaying(false);
      return undefined;
    }
    const timer = setTimeout(() => setAt(at + 1), FRAME_MS / speed);
    return () => clearTimeout(timer);
  }, [playing, at, speed, last]);
  const stop = useCallback(() => setPlaying(false), []);
  const go = useCallback((to) => {
    setPlaying(false);
    setAt(to >= last ? null : Math.max(0, to));
  }, [last]);
  const toggle = () => {
    if (!playing && at >= last) setAt(0);
    setPlaying(!playing);
  };
  const keys = {
    ' ': toggle, ArrowLeft: () => go(at - 1), ArrowRight: () => go(at + 1), Home: () => go(0), End: () => go(last),
  };
  return { at, last, playing, speed, setSpeed, go, stop, toggle, keys };
}
