"""ng_browse: the list of rollouts, one rollout with its board, and the findings, in a terminal.

It shows what the web viewer shows and reads files with the same code (`analysis/viewer/`), without HTTP. Only this
package imports textual.
"""
