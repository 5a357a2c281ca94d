// Package report keeps what was measured, round by round, folds the rounds into
// one figure each, and writes the results as tables and as JSON.
//
// A ratio compares with the section's base within each round, and the median of
// those ratios is shown: rounds are interleaved, so what a busy machine does to
// one subject in a round it mostly does to the other too. It is therefore not
// always the quotient of the two medians beside it.
package report
