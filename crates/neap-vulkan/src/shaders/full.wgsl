// Every operand is full, or one number.

const SPREAD = false;

