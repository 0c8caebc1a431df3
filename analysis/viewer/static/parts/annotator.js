/** The keys and dialogs with which a person labels a rollout: the one that is shown, or the selected row of a list. */
import { html, useEffect, useLayoutEffect, useRef, useState } from '../vendor/htm-preact.js';
import { IS_EXPORT } from '../data.js';
import { useKeys } from '../keys.js';
import { keyOf, NONE, NUMBERED, parseVerdict, toggled, verdictText } from './notestore.js';
import { useNavigation } from '../route.js';
import { Name } from '../text.js';

const SHOWN_MS = 8000;
const TITLES = { label: 'Label', note: 'Note', verdict: 'Verdict' };

/** What a page needs to label rollouts: `start(kind)` opens a dialog, `write` writes a record, `message` is what happened last.
 * @param {any} store that of `useNotes` @param {() => {task: number, repeat: number} | null} target the rollout that keys are about */
export function useAnnotator(store, target) {
  const [open, setOpen] = useState(null);
  const [message, setMessage] = useState('');
  const attempts = useRef(0);
  const attempt = async (work) => {
    attempts.current += 1;
    const number = attempts.current;
    let done = true;
    const found = await work().catch((error) => {
      done = false;
      return error.message;
    });
    if (number === attempts.current) setMessage(found); // a later key has the last word
    return done;
  };
  const write = (line, record) => attempt(async () => {
    await store.write(line, record);
    return done(record);
  });
  const withTarget = (action) => () => {
    const line = target();
    if (!line) return false;
    if (store.whyReadOnly) setMessage(`Notes cannot be written: ${store.whyReadOnly}.`);
    else action(line);
    return true;
  };
  const start = (kind) => withTarget((line) => setOpen({ kind, line, from: document.activeElement }));
  const judge = (verdict) => withTarget((line) => write(line, { kind: 'override', verdict }));
  const undo = () => attempt(async () => {
    const line = await store.undo();
    return line ? `Undone at task ${line.task}, repeat ${line.repeat}` : 'Nothing to undo: this tab has written nothing.';
  });
  const toggle = (line, label) => write(line, toggled(store.notes.get(keyOf(line)) ?? NONE, label, store.author));
  const keys = { l: start('label'), w: start('note'), v: start('verdict'), c: judge('correct'), x: judge('wrong'), z: undo };
  for (let number = 1; number <= NUMBERED; number += 1) {
    keys[number] = withTarget((line) => {
      const label = store.view?.labels[number - 1]?.label;
      if (label) toggle(line, label);
      else setMessage(`There is no label ${number} yet; add one with l.`);
    });
  }
  useKeys(IS_EXPORT ? {} : keys);
  return { open, setOpen, message, setMessage, write, toggle, start, judge, undo, store };
}

function done(record) {
  if (record.kind === 'label') return `Label ${record.label} added`;
  if (record.kind === 'unlabel') return `Label ${record.label} removed`;
  if (record.kind === 'override') return `Verdict: ${verdictText(record.verdict)}`;
  return record.kind === 'removal' ? 'Removed' : 'Note saved';
}

/** The dialog that is open, and the message. @param {{annotator: ReturnType<typeof useAnnotator>}} props */
export function Annotator({ annotator }) {
  const { open, setOpen, message, store } = annotator;
  const dialog = useRef(null);
  const before = useRef(null);
  // A layout effect, so that what is typed right after the key goes into the dialog.
  useLayoutEffect(() => {
    if (open && !dialog.current.open) {
      before.current = open.from;
      dialog.current.showModal();
      const first = dialog.current.querySelector('[autofocus]');
      first?.focus();
      first?.select(); // so that typing replaces the present verdict
    }
    if (!open && dialog.current.open) dialog.current.close();
  }, [open]);
  useEffect(() => {
    const timer = message ? setTimeout(() => annotator.setMessage(''), SHOWN_MS) : 0;
    return () => clearTimeout(timer);
  }, [message]);
  const close = () => {
    setOpen(null);
    before.current?.focus?.();
  };
  useNavigation(() => open && close());
  const save = async (record) => {
    close(); // at once, so that the next key can follow
    if (!(await annotator.write(open.line, record))) setOpen({ ...open, draft: record }); // nothing that was typed is lost
  };
  const own = open && (store.notes.get(keyOf(open.line)) ?? NONE).verdicts.find((one) => one.author === store.author);
  return html`<dialog ref=${dialog} class="annotate" onClose=${close} aria-labelledby="annotate-title">
    ${open && html`<h2 id="annotate-title">${TITLES[open.kind]} <span class="soft">task ${open.line.task}, repeat ${open.line.repeat}</span></h2>
      ${open.kind === 'label' && html`<${LabelField} labels=${store.view?.labels ?? []} choose=${(label) => {
        annotator.toggle(open.line, label);
        close();
      }} />`}
      ${open.kind === 'note' && html`<${NoteForm} draft=${open.draft} save=${save} />`}
      ${open.kind === 'verdict' && html`<${VerdictForm} own=${open.draft ?? own ?? null} save=${save} />`}
      ${open.draft && html`<p class="bad" role="alert">This was not saved. <${Name} value=${message} /></p>`}
      <button class="quiet" onClick=${close}>Cancel</button>`}
  </dialog>
  <p class="notemessage" role="status">${message && html`<${Name} value=${message} />`}</p>`;
}

function LabelField({ labels, choose }) {
  const [text, setText] = useState('');
  const submit = (event) => {
    event.preventDefault();
    if (text.trim()) choose(text.trim());
  };
  return html`<form onSubmit=${submit}>
    <label class="wide">Label<input type="text" name="label" autofocus autocomplete="off" maxlength="80" list="known-labels" value=${text}
      onInput=${(event) => setText(event.target.value)} /></label>
    <datalist id="known-labels">${labels.map(({ label }) => html`<option key=${label} value=${label}></option>`)}</datalist>
    <p class="small soft">Enter adds the label, or removes it if you gave it. ↓ chooses one that was used before.</p>
  </form>`;
}

function NoteForm({ draft, save }) {
  const [text, setText] = useState(draft?.text ?? '');
  const submit = (event) => {
    event.preventDefault();
    if (text.trim()) save({ kind: 'note', text: text.trim() });
  };
  return html`<form onSubmit=${submit}>
    <label class="wide">Note<textarea name="note" autofocus rows="4" maxlength="20000" value=${text} onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => event.key === 'Enter' && !event.shiftKey && submit(event)}></textarea></label>
    <p class="small soft">Enter saves, Shift+Enter starts a new line.</p>
    <button disabled=${!text.trim()}>Save</button>
  </form>`;
}

function VerdictForm({ own, save }) {
  const [text, setText] = useState(own ? String(own.verdict) : '');
  const [reason, setReason] = useState(own?.reason ?? '');
  const verdict = parseVerdict(text);
  const submit = (event) => {
    event.preventDefault();
    if (verdict !== null) save({ kind: 'override', verdict, reason: reason.trim() });
  };
  return html`<form onSubmit=${submit}>
    <label class="wide">Verdict<input type="text" name="verdict" autofocus autocomplete="off" list="verdicts" placeholder="correct, wrong or a reward"
      value=${text} aria-invalid=${text.trim() && verdict === null ? 'true' : undefined} aria-describedby="verdict-check"
      onInput=${(event) => setText(event.target.value)} /></label>
    <datalist id="verdicts"><option value="correct"></option><option value="wrong"></option></datalist>
    <p id="verdict-check" class="small bad" aria-live="polite">${text.trim() && verdict === null ? 'Expected correct, wrong or a number.' : ''}</p>
    <label class="wide">Reason<input type="text" name="reason" autocomplete="off" maxlength="20000" value=${reason} onInput=${(event) => setReason(event.target.value)} /></label>
    <button disabled=${verdict === null}>Save</button>
  </form>`;
}
