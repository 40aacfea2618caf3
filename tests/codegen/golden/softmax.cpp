// kernel softmax(in0: float32[806912], out0: float32[806912])
//   parallel i0:4096  inner r0:197
//   %0 = load in0[((i0 * 197) + r0)]
//   %1 = max over r0 of %0
//   %2 = sub %0, %1
//   %3 = exp %2
//   %4 = sum over r0 of %3
//   %5 = div %3, %4
//   out0[((i0 * 197) + r0)] = %5  over r0
// Schedule(vector_width=8, unroll=2)
static int k_dc37831dab564762_items(void *const *buffers, int64_t begin, int64_t end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  constexpr Lanes<8, 16> lanes{};
  Scratch<float, 197> keep0;
  for (int64_t i0 = begin; i0 < end; ++i0) {
    auto acc0 = splat(lanes, -__builtin_inff());
    for (int64_t r0 = 0; r0 < 192; r0 += 16) {
      const auto v0 = load(lanes, in0 + i0 * 197 + r0);
      acc0 = maximum(acc0, v0);
    }
    {
      constexpr Lanes<8, 8, 5> lanes{};
      constexpr int64_t r0 = 192;
      const auto v1 = load(lanes, in0 + i0 * 197 + r0);
      acc0 = maximum(acc0, widen<decltype(acc0)>(live(lanes, v1, -__builtin_inff()), -__builtin_inff()));
    }
    const auto v2 = fold(Maximum(), acc0);
    auto acc1 = splat(lanes, 0.0f);
    for (int64_t r0 = 0; r0 < 192; r0 += 16) {
      const auto v3 = load(lanes, in0 + i0 * 197 + r0);
      const auto v4 = sub(v3, splat(lanes, v2));
      const auto v5 = exp(v4);
      acc1 = add(acc1, v5);
      store(lanes, keep0.row + r0, v5);
    }
    {
      constexpr Lanes<8, 8, 5> lanes{};
      constexpr int64_t r0 = 192;
      const auto v6 = load(lanes, in0 + i0 * 197 + r0);
      const auto v7 = sub(v6, splat(lanes, v2));
      const auto v8 = exp(v7);
      acc1 = add(acc1, widen<decltype(acc1)>(live(lanes, v8, 0.0f), 0.0f));
      store(lanes, keep0.row + r0, v8);
    }
    const auto v9 = fold(Add(), acc1);
    for (int64_t r0 = 0; r0 < 192; r0 += 16) {
      const auto v10 = load(lanes, keep0.row + r0);
      const auto v11 = div(v10, splat(lanes, v9));
      store(lanes, out0 + i0 * 197 + r0, v11);
    }
    {
      constexpr Lanes<8, 8, 5> lanes{};
      constexpr int64_t r0 = 192;
      const auto v12 = load(lanes, keep0.row + r0);
      const auto v13 = div(v12, splat(lanes, v9));
      store(lanes, out0 + i0 * 197 + r0, v13);
    }
  }
  return 0;
}

ENTRY int k_dc37831dab564762(void *const *buffers, int threads) {
  return parallel_for(threads, 4096, 24, [=](int64_t begin, int64_t end) { return k_dc37831dab564762_items(buffers, begin, end); });
}
