//! Run neural networks inside an enforced memory budget.
