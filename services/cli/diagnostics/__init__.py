"""The checks behind ng_doctor."""
