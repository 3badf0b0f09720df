// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

// Gives each row a column of its own so that the sum of the costs is least, where there are at
// least as many columns as rows: shortest augmenting paths, in float64. "A Shortest Augmenting Path
// Algorithm for Dense and Sparse Linear Assignment Problems" (Jonker and Volgenant, 1987), for
// matrices of any shape "On implementing 2D rectangular assignment algorithms" (Crouse, 2016).
//
// Every column has a price, and rows prefer the column whose cost and price are least together. A
// column without an owner has the price that all had at first.
namespace detops::math::assignment {

// A cost beyond it, or none at all, makes a pair that is never matched. Sums of as many costs as a
// matrix has, and of what stands in for such a cost, are finite.
constexpr double kMostCost = 1e200;

DETOPS_HD bool is_cost(double x) { return x >= -kMostCost && x <= kMostCost; }

// Stands for a pair that is never matched: one more of these outweighs all that can be saved
// elsewhere, so their number is the least that there can be. `least` and `most` are of the others.
DETOPS_HD double forbidden_cost(double least, double most, int rows) {
  const double magnitude = max(abs(least), abs(most));
  return most + rows * (most - least) + (magnitude > 0 ? magnitude : 1);
}

// The least sum of cost and price of a row, the second least, and a column that has the least one.
struct Offer {
  double least, second;
  int column;
};

// The end of the shortest path.
struct Nearest {
  double distance;
  int column;
};

// Rows may take this many columns each, on average, before the others look for paths.
constexpr int kClaims = 4;

// Of equals, columns without an owner come first, then the lowest index. `Columns` has
//   cost(row, column), price(column), owner(column), column(row): owner and column are -1 for none;
//   offer(row);
//   give(column, row, price): takes the column from its owner, if it has one;
//   open(row): the nearest column by the costs and prices of a row, with which all paths begin;
//   close(nearest): a path goes on from there, and no other comes to it;
//   relax(row, passed): the nearest open column, by paths that may now end with this row;
//   settle(distance): raises the prices of closed columns by what they are nearer than that;
//   extend(column, row): each row on the path from `row` to the column takes the next column.
template <typename Columns>
DETOPS_ONE_SIDE void solve(Columns& columns, int rows) {
  // A row takes the column that it prefers, from its owner if need be, and raises the price until
  // it has no preference left.
  int64_t claims = int64_t(kClaims) * rows;
  for (int row = 0; row < rows; ++row) {
    for (int claimant = row; claimant >= 0 && claims > 0; --claims) {
      const Offer offer = columns.offer(claimant);
      const double price = columns.price(offer.column);
      const double raised = price + (offer.second - offer.least);
      const int before = columns.owner(offer.column);
      if (before >= 0 && !(raised > price)) break;
      columns.give(offer.column, claimant, raised);
      claimant = before;
    }
  }
  for (int row = 0; row < rows; ++row) {
    if (columns.column(row) >= 0) continue;
    Nearest nearest = columns.open(row);
    for (int owner; (owner = columns.owner(nearest.column)) >= 0;) {
      const double sum = columns.cost(owner, nearest.column) + columns.price(nearest.column);
      columns.close(nearest);
      nearest = columns.relax(owner, sum - nearest.distance);
    }
    columns.settle(nearest.distance);
    columns.extend(nearest.column, row);
  }
}

}  // namespace detops::math::assignment
