// kernel embedding(in0: int64[7], in1: float32[240], out0: float32[168])
//   parallel i0:7 i1:24
//   %0 = load in0[i0]
//   %1 = bounded %0, 10:int64
//   %2 = mul %1, 24:int64
//   %3 = add i1, %2
//   %4 = load in1[%3]
//   out0[((i0 * 24) + i1)] = %4
// Schedule(vector_width=8)
static int k_0cfb67766dc9ee12_items(void *const *buffers, int64_t begin, int64_t end) {
  const int64_t *in0 = (const int64_t *)buffers[0];
  const float *in1 = (const float *)buffers[1];
  float *out0 = (float *)buffers[2];
  constexpr Lanes<8, 8> lanes{};
  int failed = 0;
  for (int64_t i0 = begin; i0 < end; ++i0) {
    const auto v0 = in0[i0];
    failed |= outside(v0, int64_t(10));
    const auto v1 = bounded(v0, int64_t(10));
    for (int64_t i1 = 0; i1 < 24; i1 += 8) {
      const auto v2 = load(lanes, in1 + i1 + v1 * 24);
      store(lanes, out0 + i0 * 24 + i1, v2);
    }
  }
  return failed;
}

ENTRY int k_0cfb67766dc9ee12(void *const *buffers, int threads) {
  return k_0cfb67766dc9ee12_items(buffers, 0, 7);
}
