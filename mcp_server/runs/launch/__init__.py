"""Starting runs: a request is resolved, checked, admitted and started."""
