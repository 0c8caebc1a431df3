"""Indexes large rollout files for the viewer: tables, text searches and file fingerprints."""
