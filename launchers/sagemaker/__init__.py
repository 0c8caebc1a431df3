"""Submits training and evaluation jobs to Amazon SageMaker; `container/` is what runs inside a job."""
