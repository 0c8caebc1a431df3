#!/bin/bash
for file in $(ls $1); do
    cp $1/$file $2
done
