"""The screen of training runs: tab 3 and the AMP panel of the live tab."""
