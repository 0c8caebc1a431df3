/** Starts the page. */
import { html, render } from './vendor/htm-preact.js';
import { App } from './shell.js';
import { applyTheme } from './theme.js';

applyTheme();
render(html`<${App} />`, document.getElementById('app'));
