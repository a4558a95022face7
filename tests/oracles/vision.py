"""Chapter 14, pixel by pixel and cell by cell."""

import math

import numpy as np

import oracles
from oracles import each


@each(3, None)
def patches(images, size):
    _, H, W = images.shape
    size = int(size)
    result = []
    for top in range(0, H, size):
        for left in range(0, W, size):
            square = images[:, top : top + size, left : left + size]
            result.append([number for channel in square for row in channel for number in row])
    return np.array(result)


@each(2, None)
def add_grid_positions(x, columns):
    N, d_model = x.shape
    rows, columns = N // int(columns), int(columns)
    of_row = oracles.sinusoidal(rows, d_model // 2)
    of_column = oracles.sinusoidal(columns, d_model // 2)
    result = []
    for row in range(rows):
        for column in range(columns):
            result.append(x[len(result)] + np.concatenate((of_row[row], of_column[column])))
    return np.array(result)


@each(1, 3, 2, None, None, None)
def glimpse(state, cells, real, w_state, w_cell, v):
    score = oracles.additive(w_state, w_cell, v)
    seen = [place for place in np.ndindex(real.shape) if real[place] == 1]
    where, context = np.zeros(real.shape), np.zeros(cells.shape[-1])
    weights = oracles.softmax(np.array([score(state, cells[place]) for place in seen]))
    for place, weight in zip(seen, weights, strict=True):
        where[place] = weight
        context += weight * cells[place]
    return context, where


def attention_distance(weights, columns):
    if weights.ndim > 2:
        return np.array([attention_distance(one, columns) for one in weights])
    N, columns = len(weights), int(columns)
    places = [(row, column) for row in range(N // columns) for column in range(columns)]
    of_queries = [
        sum(weight * math.dist(here, there) for weight, there in zip(row, places, strict=True))
        for row, here in zip(weights, places, strict=True)
    ]
    return np.float64(sum(of_queries) / N)


def pointing_accuracy(weights, target):
    hits = []
    for sentence, targets in zip(weights, target, strict=True):
        for row, cell in zip(sentence, targets, strict=True):
            if cell >= 0:
                hits.append(all(row[cell] > other for j, other in enumerate(row) if j != cell))
    return np.float64(sum(hits) / len(hits))
