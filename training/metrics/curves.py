"""`python -m rollyard.training.metrics.curves`, which is `python -m rollyard.analysis.charts.curves`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("rollyard.analysis.charts.curves", run_name="__main__", alter_sys=True)
