"""The fabric as an operator sees it: ratios, rows and cells, histograms, in plain SVG."""
