// An operand may be one run for each image or for each plane.

const SPREAD = true;

