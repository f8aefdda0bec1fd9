// Of the channels of two panels at four places, or of their columns for four rows.

// By place, then by fours of channels of both panels.
var<private> sums: array<array<vec4<f32>, 8>, 4>;

fn begin_sums(w_first: u32, w_next: u32) {
    for (var j = 0u; j < 4u; j++) {
        let low = bias(w_first, j);
        let high = bias(w_next, j);
        for (var p = 0u; p < 4u; p++) {
            sums[p][j] = low;
            sums[p][4u + j] = high;
        }
    }
}

