"""Practice on the running lab: one's own rules in its Prometheus, and blind drills on its job."""
