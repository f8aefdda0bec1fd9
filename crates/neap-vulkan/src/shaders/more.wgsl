// Something may be added to results, and they may be curved.

const MORE = true;
