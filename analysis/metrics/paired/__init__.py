"""Compares two runs on the tasks that both contain: tests, intervals and power of paired differences.

`task_values` computes a metric of every task in two runs, `difference` chooses the test and the interval, and
`run_pair` puts the results of two runs together.
"""
