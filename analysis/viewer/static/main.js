/** Starts the page. */
import { html, render } from './vendor/htm-preact.js';
import { App } from './app.js';
import { applyTheme } from './storage.js';

applyTheme();
render(html`<${App} />`, document.getElementById('app'));
