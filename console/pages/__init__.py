"""The pages: functions of a call, which make SDK calls as the person and answer with JSON."""
