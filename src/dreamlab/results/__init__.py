"""What finished runs say: statistics, comparisons, figures, pages."""
