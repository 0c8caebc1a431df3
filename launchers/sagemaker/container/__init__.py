"""What runs inside a SageMaker job: fetches the source, the model and the data, runs the program, uploads its files."""
