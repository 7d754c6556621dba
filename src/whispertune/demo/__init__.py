"""The demo: tiny.en taught names that it cannot know, in synthetic speech made on this machine."""
