"""Alert practice: drills, the two engines that judge rules on them, and the score."""
