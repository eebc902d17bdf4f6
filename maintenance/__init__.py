"""Programs for maintainers: releases, the pages of the documentation site, the difference of tool schemas."""
