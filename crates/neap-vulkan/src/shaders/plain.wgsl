// Results are bounded at most, and nothing is added to them. Drivers that compute on the processor compute what a branch leaves out.

const MORE = false;
