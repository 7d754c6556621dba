"""What was said against what was heard: normalising, aligning, intervals and the verdict. No torch here."""
