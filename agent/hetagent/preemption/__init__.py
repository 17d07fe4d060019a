"""`--watch` and `--leave-when`: this node leaves in time where somebody announces that its machine is taken away."""
