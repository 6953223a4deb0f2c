"""Trainers of others, stopped and resumed as the lab's own run is: gates that each must pass, and a verdict."""
