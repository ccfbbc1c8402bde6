"""Where trials run, behind one protocol (`protocol.py`); what workers of all kinds share lies here, too."""
