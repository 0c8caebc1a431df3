"""What the viewer keeps beside large rollout files: tables, searches, fingerprints."""
