"""Parts of the differential run: what is sent, how replies are compared, what may differ."""
