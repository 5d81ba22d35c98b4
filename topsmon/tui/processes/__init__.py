"""Tab 5: who uses the devices, and what can be done about it."""
