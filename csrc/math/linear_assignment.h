// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

// Assigns each row its own column so that the sum of the costs is least. There must be at least as
// many columns as rows. The method is shortest augmenting paths, in float64: "A Shortest Augmenting
// Path Algorithm for Dense and Sparse Linear Assignment Problems" (Jonker and Volgenant, 1987), and
// for matrices of any shape "On implementing 2D rectangular assignment algorithms" (Crouse, 2016).
//
// Every column has a price. A row prefers the column with the least sum of cost and price. A column
// without an owner still has its initial price.
namespace detops::math::assignment {

// A pair whose cost exceeds this magnitude or is NaN is never matched. The limit keeps sums of all
// costs of a matrix finite, including the costs that replace those of such pairs.
constexpr double kMaxCost = 1e200;

DETOPS_HD bool is_cost(double x) { return x >= -kMaxCost && x <= kMaxCost; }

// Returns the cost of a pair that is never matched. One more of these outweighs any saving
// elsewhere, so a solution has as few of them as possible. `least` and `most` are the extremes of
// the other costs.
DETOPS_HD double forbidden_cost(double least, double most, int rows) {
  const double magnitude = max(abs(least), abs(most));
  return most + rows * (most - least) + (magnitude > 0 ? magnitude : 1);
}

// The least and the second least sum of cost and price in a row, and a column with the least sum.
struct Bid {
  double least, second;
  int column;
};

// The column at which the shortest path ends, and the path's length.
struct Nearest {
  double distance;
  int column;
};

// The maximum number of bids per row, on average. Rows that end up without a column search for
// paths.
constexpr int kBidsPerRow = 4;

// Among equal sums, columns without an owner come first, then the lowest index. `Columns` provides
//   cost(row, column), price(column), owner(column), column(row): owner and column are -1 for none;
//   bid(row): returns the row's Bid;
//   assign(column, row, price): also takes the column from its owner, if it has one;
//   start_paths(row): starts all paths at the row and returns the nearest column by its costs and
//     prices;
//   close(nearest): removes the column from the open ones: a path continues from it;
//   relax(row, offset): adds paths whose last row is this one, at its costs plus the prices minus
//     `offset`, and returns the nearest open column;
//   update_prices(distance): raises the price of each closed column by `distance` minus its own
//     distance;
//   augment(column, row): assigns to each row on the path from `row` to `column` the next column.
template <typename Columns>
DETOPS_ONE_SIDE void solve(Columns& columns, int rows) {
  // A row takes the column that it prefers, from its owner if it has one, and raises the price
  // until the second best column is as good.
  int64_t bids = int64_t(kBidsPerRow) * rows;
  for (int row = 0; row < rows; ++row) {
    for (int bidder = row; bidder >= 0 && bids > 0; --bids) {
      const Bid bid = columns.bid(bidder);
      const double price = columns.price(bid.column);
      const double new_price = price + (bid.second - bid.least);
      const int previous_owner = columns.owner(bid.column);
      if (previous_owner >= 0 && !(new_price > price)) break;
      columns.assign(bid.column, bidder, new_price);
      bidder = previous_owner;
    }
  }
  for (int row = 0; row < rows; ++row) {
    if (columns.column(row) >= 0) continue;
    Nearest nearest = columns.start_paths(row);
    for (int owner; (owner = columns.owner(nearest.column)) >= 0;) {
      const double sum = columns.cost(owner, nearest.column) + columns.price(nearest.column);
      columns.close(nearest);
      nearest = columns.relax(owner, sum - nearest.distance);
    }
    columns.update_prices(nearest.distance);
    columns.augment(nearest.column, row);
  }
}

}  // namespace detops::math::assignment
