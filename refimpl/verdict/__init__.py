"""From what the ranks answered to a verdict: kinds of failure, the judge, the reducer and the report."""
