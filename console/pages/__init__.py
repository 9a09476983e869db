"""What each page shows and does, as functions of a call: SDK calls as the person, answers as JSON."""
