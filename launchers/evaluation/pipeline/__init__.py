"""The evaluation behind `ng_eval`: processes that serve the model, run the servers, collect, and write the report."""
