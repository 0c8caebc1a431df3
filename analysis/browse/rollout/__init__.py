"""One rollout: its verdict, conversation, failed attempts and board."""
