/** Starts the page. */
import { html, render } from './vendor/htm-preact.js';
import { Shell } from './shell.js';
import { applyTheme } from './theme.js';

applyTheme();
render(html`<${Shell} />`, document.getElementById('app'));
